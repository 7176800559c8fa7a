"""Jobs on whole stores, such as compaction: rounds of calls on the driver, work of the tasks, progress, reports."""
