"""Values as typed columns, read as Spark's own JSON source reads them: `Typed`, and `infer`."""

from penstock.spark.typed.columns import Typed
from penstock.spark.typed.infer import infer
from penstock.spark.typed.texts import CORRUPT_COLUMN, MODES

__all__ = ["CORRUPT_COLUMN", "MODES", "Typed", "infer"]
