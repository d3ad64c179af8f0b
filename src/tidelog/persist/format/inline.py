"""The bytes of small parts, which are stored inline in their descriptors: one Arrow record batch.

Source: design page 4, "Writing".
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def encode_inline(updates: pa.Table) -> bytes:
    """Return a non-empty table as the bytes of one batch; equal rows give equal bytes."""
    batch = updates.combine_chunks().to_batches()[0]
    # Behind nulls and past the end of a slice, Arrow buffers contain arbitrary memory. `take`
    # copies only the rows themselves.
    return batch.take(np.arange(batch.num_rows)).serialize().to_pybytes()
