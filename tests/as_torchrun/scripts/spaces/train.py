from . import neighbour

print(__package__, __spec__.parent, neighbour.__name__)
