from . import export as export
from . import perfetto as perfetto
from . import report as report
from . import sweep as sweep
