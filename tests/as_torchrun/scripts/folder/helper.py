WORD = "from the folder"


def work(n):
    return n + 1
