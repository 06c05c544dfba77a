"""The history that several machines share, as a launcher uses it: with a copy and a spool."""
