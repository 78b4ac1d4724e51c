"""Plans for other runtimes: one file per format, all in `FORMATS`."""

from .record import Exported as Exported
from .record import Format as Format
from .record import Subject as Subject
from .registry import FORMATS as FORMATS
from .stages import export_stages as export_stages
from .write import Written as Written
from .write import export_files as export_files
from .write import format_called as format_called
