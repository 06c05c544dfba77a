NAME = "the user's ctypes"
