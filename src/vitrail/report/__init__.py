"""Reports: self-contained pages on a model or a run, and their sections."""

from vitrail.report.inspection_report import InspectionReport as InspectionReport
from vitrail.report.inspection_report import inspect as inspect
from vitrail.report.run_report import leave_report as leave_report
