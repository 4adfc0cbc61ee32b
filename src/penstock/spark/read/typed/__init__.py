"""Values as typed columns, read as Spark's own JSON source reads them: `Typed`, and `infer`."""

from penstock.spark.read.typed.columns import Typed
from penstock.spark.read.typed.infer import infer
from penstock.spark.read.typed.texts import CORRUPT_COLUMN, MODES

__all__ = ["CORRUPT_COLUMN", "MODES", "Typed", "infer"]
