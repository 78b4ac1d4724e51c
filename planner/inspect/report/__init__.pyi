from .layer import is_heavy as is_heavy
from .plan_page import report_html as report_html
from .schedule_page import schedule_html as schedule_html
