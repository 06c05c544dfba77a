"""When a job runs by itself: timetables, what is due, what to do about overlaps, cron."""
