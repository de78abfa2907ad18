-- Beside the database of Dagster, which the image of Postgres makes.
CREATE DATABASE iceberg;
