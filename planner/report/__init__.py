"""A plan as one self-contained HTML file: `report_html`."""

from .page import report_html as report_html
