"""A plan as one self-contained HTML file: `report_html`."""

from .layer import is_heavy as is_heavy
from .page import report_html as report_html
from .pipeline_page import pipeline_html as pipeline_html
from .schedule_page import schedule_html as schedule_html
