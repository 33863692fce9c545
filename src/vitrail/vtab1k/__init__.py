"""VTAB-1k (arXiv 1910.04867): 19 tasks of 1,000 training images each, as the paper runs them."""

from vitrail.vtab1k.benchmark import TaskResult, VTABConfig, VTABResult, vtab
from vitrail.vtab1k.vtab_tasks import GROUPS, TASKS, Task

__all__ = ["GROUPS", "TASKS", "Task", "TaskResult", "VTABConfig", "VTABResult", "vtab"]
