"""moto's own server with serialized puts; it takes the options of ``python -m moto.server``.

A conditional put of S3 is atomic. moto first checks for the object and puts it later, so two
concurrent creations of an object would both succeed.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_TURN = threading.Lock()


def take_turns(put: Any) -> Any:
    """Return ``put`` so that one thread runs it at a time."""

    @functools.wraps(put)
    def put_alone(*args: Any, **kwargs: Any) -> Any:
        with _TURN:
            return put(*args, **kwargs)

    return put_alone


if __name__ == "__main__":
    S3Response.put_object = take_turns(S3Response.put_object)
    main()
