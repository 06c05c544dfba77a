"""Jobs that run by themselves: timetables, due occurrences, overlaps, cron."""
