"""The sources' learning tasks, run: each trains small models side by side and shows a table, a curve and what it means.

`LESSONS` holds them all by name; a lesson's module is imported when it is asked for.
"""
