"""What happens in the shop: each trade is one transaction, and does nothing when there is nobody to do it with."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from cdc_lakehouse.sample.people import address, birthday, json_text, person_name, remark
from cdc_lakehouse.sample.row_change import Row
from cdc_lakehouse.sample.shop_ddl import campaigns
from cdc_lakehouse.sample.shop_tables import CARTS, CUSTOMERS, INTERESTS, METHODS, ORDERS, PAYMENTS, STATUSES
from cdc_lakehouse.sample.transaction import Transaction

# A feed that runs for weeks must not grow without end: its state is kept in one file.
_CUSTOMERS_KEPT: Final = 500
_ORDERS_KEPT: Final = 1_000
_ARCHIVED_AT_ONCE: Final = 20

_NEW, _PAID, _SHIPPED, _DELIVERED = (str(number) for number in range(1, len(STATUSES) + 1))
_SKUS: Final = tuple(f"SKU-{number:04d}" for number in range(1, 25))
_CHANNELS: Final = ("web", "app", "телефон")


def register(deal: Transaction) -> None:
    number, name = deal.next_id(CUSTOMERS), person_name(deal.rng)
    notes = remark(deal.rng)
    deal.insert(CUSTOMERS, {
        "id": number,
        "email": f"customer{number}@example.org",
        "name": name,
        "born": birthday(deal.rng),
        "newsletter": str(deal.rng.randint(0, 1)),
        "interests": _interests(deal),
        "points": "0",
        "address": address(deal.rng) if deal.rng.random() < 0.8 else None,
        "notes": notes,
        "remarks": notes,
        "token": deal.rng.randbytes(16).decode("latin-1"),
        "created_at": _seconds(deal.moment),
        "updated_at": None,
    })  # fmt: skip


def fill_cart(deal: Transaction) -> None:
    customer = deal.any_row(CUSTOMERS)
    if customer is None:
        return
    sku = deal.rng.choice(_SKUS)
    lines = deal.rows(CARTS, customer_id=customer["id"], sku=sku)
    if lines:
        deal.update(CARTS, lines[0], {"quantity": _plus(lines[0]["quantity"], 1)})
        return
    line = {"customer_id": customer["id"], "sku": sku, "quantity": "1", "added_at": _milliseconds(deal.moment)}
    deal.insert(CARTS, line)


def place_order(deal: Transaction) -> None:
    customer = deal.any_row(CUSTOMERS)
    if customer is None:
        return
    lines = deal.rows(CARTS, customer_id=customer["id"])
    for line in lines:
        deal.delete(CARTS, line)
    deal.insert(ORDERS, {
        "id": deal.next_id(ORDERS),
        "customer_id": customer["id"],
        "status": _NEW,
        "total": _money(deal.rng.randint(100, 50_000) * max(1, len(lines))),
        "items": str(max(1, len(lines))),
        "gift": str(int(deal.rng.random() < 0.1)),
        "message": remark(deal.rng),
        "ordered_at": _milliseconds(deal.moment),
        "shipped_on": None,
        "updated_at": _seconds(deal.moment),
        "channel": deal.rng.choice(_CHANNELS),
    })  # fmt: skip
    deal.update(CUSTOMERS, customer, {"updated_at": _milliseconds(deal.moment)})


def pay(deal: Transaction) -> None:
    order = deal.any_row(ORDERS, status=_NEW)
    if order is None:
        return
    method = deal.rng.randint(1, len(METHODS))
    _move_on(deal, order, {"status": _PAID})
    deal.insert(PAYMENTS, {
        "id": deal.next_id(PAYMENTS),
        "order_id": order["id"],
        "method": str(method),
        "amount": order["total"],
        "details": json_text({"last4": f"{deal.rng.randint(0, 9999):04d}", "3ds": True}) if method == 1 else None,
        "receipt": deal.rng.randbytes(deal.rng.randint(0, 32)).decode("latin-1"),
        "paid_at": _milliseconds(deal.moment),
        "currency": deal.rng.choice(("EUR", "EUR", "USD")),
    })  # fmt: skip
    for customer in deal.rows(CUSTOMERS, id=order["customer_id"]):
        deal.update(CUSTOMERS, customer, {"points": _plus(customer["points"], 10)})


def ship(deal: Transaction) -> None:
    if order := deal.any_row(ORDERS, status=_PAID):
        _move_on(deal, order, {"status": _SHIPPED, "shipped_on": deal.moment.date().isoformat()})


def deliver(deal: Transaction) -> None:
    if order := deal.any_row(ORDERS, status=_SHIPPED):
        _move_on(deal, order, {"status": _DELIVERED})


def cancel(deal: Transaction) -> None:
    if order := deal.any_row(ORDERS, status=_NEW):
        deal.delete(ORDERS, order)


def edit_profile(deal: Transaction) -> None:
    customer = deal.any_row(CUSTOMERS)
    if customer is None:
        return
    notes = remark(deal.rng)
    values: Row = {
        "name": person_name(deal.rng),
        "address": address(deal.rng),
        "interests": _interests(deal),
        "notes": notes,
        "remarks": notes,
        "updated_at": _milliseconds(deal.moment),
    }
    deal.update(CUSTOMERS, customer, {**values, **dict.fromkeys(campaigns(deal.database)[-1:], "joined")})


def leave(deal: Transaction) -> None:
    """A customer goes, with all that is theirs."""
    customer = deal.any_row(CUSTOMERS)
    if customer is None:
        return
    for line in deal.rows(CARTS, customer_id=customer["id"]):
        deal.delete(CARTS, line)
    for order in deal.rows(ORDERS, customer_id=customer["id"]):
        _delete_order(deal, order)
    deal.delete(CUSTOMERS, customer)


def renumber(deal: Transaction) -> None:
    """A customer gets another key: DELETE and INSERT with one commit-ts, in two tables."""
    customer = deal.any_row(CUSTOMERS)
    if customer is None:
        return
    number = deal.next_id(CUSTOMERS)
    for line in deal.rows(CARTS, customer_id=customer["id"]):
        deal.update(CARTS, line, {"customer_id": number})
    for order in deal.rows(ORDERS, customer_id=customer["id"]):
        deal.update(ORDERS, order, {"customer_id": number})
    deal.update(CUSTOMERS, customer, {"id": number})


def tidy(deal: Transaction) -> None:
    """Make room in a shop that is full."""
    if deal.count(CUSTOMERS) > _CUSTOMERS_KEPT:
        leave(deal)
    elif deal.count(ORDERS) > _ORDERS_KEPT:
        for order in deal.rows(ORDERS, status=_DELIVERED)[:_ARCHIVED_AT_ONCE]:
            _delete_order(deal, order)


TRADES: Final[dict[Callable[[Transaction], None], int]] = {
    register: 10, fill_cart: 14, place_order: 18, pay: 18, ship: 18, deliver: 18, cancel: 3, edit_profile: 8, leave: 1,
    renumber: 2,
}  # fmt: skip
"""How often each happens, in relation to the others."""


def _move_on(deal: Transaction, order: Row, values: Row) -> None:
    deal.update(ORDERS, order, {**values, "updated_at": _seconds(deal.moment)})


def _delete_order(deal: Transaction, order: Row) -> None:
    for payment in deal.rows(PAYMENTS, order_id=order["id"]):
        deal.delete(PAYMENTS, payment)
    deal.delete(ORDERS, order)


def _interests(deal: Transaction) -> str | None:
    """A SET is the sum of its members' bits."""
    return None if deal.rng.random() < 0.2 else str(deal.rng.randrange(1 << len(INTERESTS)))


def _plus(number: str | None, more: int) -> str:
    return str(int(number or 0) + more)


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _seconds(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _milliseconds(moment: datetime.datetime) -> str:
    return f"{_seconds(moment)}.{moment.microsecond // 1000:03d}"
