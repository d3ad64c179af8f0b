"""A client of keyed logs over HTTP; it needs no further packages.

```python
from tidelog.http.client import HttpKeyedLog

with HttpKeyedLog("http://127.0.0.1:8080", "orders", token=token) as log:
    log.append([(b"ann", b"one")])
    table = log.scan(b"ann").to_arrow()
```
"""

from tidelog.http.client.keyed import HttpKeyedLog
from tidelog.http.client.reading import HttpScan

__all__ = ["HttpKeyedLog", "HttpScan"]
