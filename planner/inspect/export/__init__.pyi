from .plan import export_plan as export_plan
from .record import Exported as Exported
from .record import Format as Format
from .record import Subject as Subject
from .registry import FORMATS as FORMATS
from .write import Written as Written
from .write import format_called as format_called
