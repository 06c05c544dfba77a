"""Finalizers: at exit, not at exit, and of an object that is gone before."""

import weakref


class Thing:
    pass


a, b, c = Thing(), Thing(), Thing()
weakref.finalize(a, print, "a at exit")
weakref.finalize(b, print, "never").atexit = False
weakref.finalize(c, print, "c deleted")
d = Thing()
weakref.ref(d, lambda _: print("callback of d"))
kept = weakref.ref(d, lambda _: print("callback of d"))
del c
print("script ends")
