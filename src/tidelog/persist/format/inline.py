"""The bytes of small parts, which ride in their descriptors: one Arrow record batch.

Source: design page 4, "Writing".
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def encode_inline(updates: pa.Table) -> bytes:
    """Return a table that is not empty as the bytes of one batch: equal rows as equal bytes."""
    batch = updates.combine_chunks().to_batches()[0]
    # Behind a null, and past the end of a slice, lies whatever was in memory, which is nobody's to
    # read: what is taken is copied without.
    return batch.take(np.arange(batch.num_rows)).serialize().to_pybytes()
