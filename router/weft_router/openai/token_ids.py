"""What lists of token ids are kept in."""

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    TokenIds = array[int]
else:  # Python 3.11's array takes no parameter at run time
    TokenIds = array
"""Token ids, 4 bytes each: a prompt of 30,000 tokens is kept in 120 KB while its round lives."""
