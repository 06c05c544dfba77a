print("package is imported as", __name__)
