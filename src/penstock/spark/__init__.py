"""Penstock in Spark: the data source and sink "penstock", and pipelines that use them.

``spark.read.format("penstock")`` needs no import: see ``pyspark_penstock``. What is here is what
the source is made of, and `penstock.spark.lake`, which takes logs into a Parquet lake.
"""
