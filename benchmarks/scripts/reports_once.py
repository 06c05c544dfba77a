"""Reports one metric, so that zeusrun has something to record."""

import zeusrun

zeusrun.current().report(epoch=1, accuracy=1.0)
