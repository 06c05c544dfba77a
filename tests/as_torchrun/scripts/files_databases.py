"""Databases, left open, with and without commit."""

import dbm.dumb
import shelve
import sqlite3

runs = shelve.Shelf(dbm.dumb.open("runs"), writeback=True)
runs["1"] = {"loss": 0.5}
runs["1"]["loss"] = 0.25
database = sqlite3.connect("runs.sqlite")
database.execute("create table runs (number integer, loss real)")
database.execute("insert into runs values (1, 0.5)")
database.commit()
database.execute("insert into runs values (2, 0.25)")
