-- One transaction with a new customer and orders, then changes of earlier ones.
START TRANSACTION;
INSERT INTO customers (name, country) VALUES (CONCAT('Customer ', FLOOR(RAND() * 100000)), ELT(1 + FLOOR(RAND() * 4), 'DE', 'FR', 'JP', 'US'));
INSERT INTO orders (customer_id, total, note) VALUES (LAST_INSERT_ID(), ROUND(RAND() * 500, 2), JSON_OBJECT('channel', ELT(1 + FLOOR(RAND() * 3), 'web', 'shop', 'phone')));
INSERT INTO orders (customer_id, total) SELECT id, ROUND(RAND() * 100, 2) FROM customers ORDER BY RAND() LIMIT 2;
COMMIT;
UPDATE orders SET status = 'paid' WHERE status = 'new' ORDER BY RAND() LIMIT 3;
UPDATE orders SET status = 'sent' WHERE status = 'paid' ORDER BY RAND() LIMIT 2;
DELETE FROM orders WHERE status = 'new' AND total < 5 ORDER BY id LIMIT 1;
