"""Jobs on whole stores, such as compaction: the driver's rounds of calls, the tasks' work, progress and reports."""
