"""VTAB-1k (arXiv 1910.04867): 19 tasks of 1,000 training images each, as the paper runs them."""

from vitrail.vtab1k.benchmark import TaskResult, VTABResult, vtab
from vitrail.vtab1k.vtab_tasks import GROUPS, TASKS, VTABTask

__all__ = ["GROUPS", "TASKS", "TaskResult", "VTABResult", "VTABTask", "vtab"]
