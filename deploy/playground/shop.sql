-- The shop of the playground: its users, its tables, and rows from before the feed begins.
CREATE USER canal IDENTIFIED WITH mysql_native_password BY 'canal';
GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO canal;
CREATE USER reader IDENTIFIED WITH mysql_native_password BY 'reader';
GRANT SELECT, REPLICATION CLIENT ON *.* TO reader;
CREATE DATABASE shop CHARACTER SET utf8mb4;
CREATE TABLE shop.customers (
  id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(60) NOT NULL,
  country CHAR(2) NOT NULL DEFAULT 'DE',
  joined TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
);
CREATE TABLE shop.orders (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  customer_id INT UNSIGNED NOT NULL,
  status ENUM('new', 'paid', 'sent', 'cancelled') NOT NULL DEFAULT 'new',
  total DECIMAL(12,2) NOT NULL,
  note JSON,
  ordered TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  KEY (customer_id)
);
INSERT INTO shop.customers (name, country) VALUES
  ('Ada', 'GB'), ('Grace', 'US'), ('Edsger', 'NL'), ('Barbara', 'US'), ('Tony', 'GB'), ('Margaret', 'US'),
  ('Donald', 'US'), ('Leslie', 'US'), ('Niklaus', 'CH'), ('Alan', 'GB');
INSERT INTO shop.orders (customer_id, status, total, note)
  SELECT a.id, IF(a.id % 3, 'paid', 'sent'), a.id * 10 + b.id / 4, JSON_OBJECT('gift', b.id % 2 = 0)
  FROM shop.customers AS a CROSS JOIN shop.customers AS b;
