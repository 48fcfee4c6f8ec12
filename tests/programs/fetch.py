"""Fetches a URL several times and compares it with a file: URL FILE TIMES."""
import sys
import urllib.request

url, path, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
want = open(path, "rb").read()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for _ in range(times):
    with opener.open(url, timeout=30) as answer:
        assert answer.read() == want
print("same", times)
