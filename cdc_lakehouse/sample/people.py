"""Names, addresses and what people write: text that a pipeline must carry whole (unicode, quotes, line ends)."""

from __future__ import annotations

import datetime
import json
import random
from typing import Final

_GIVEN: Final = (
    "Zoë",
    "Łukasz",
    "Søren",
    "José",
    "Анна",
    "Mehmet",
    "Nguyễn",
    "Ada",
    "Jürgen",
    "Chloé",
    "Δημήτρης",
    "Ines",
)
_FAMILY: Final = (
    "Müller",
    "O'Brien",
    "Nowak",
    "Ibáñez",
    "Иванова",
    "Öztürk",
    "Văn An",
    "Smith-Jones",
    "Åkesson",
    "Rossi",
)
_WHOLE: Final = ("李小龍", "山田 太郎", "김민준", "محمد علي", "Björk", "नेहा शर्मा")
_STREETS: Final = ("Hauptstraße", "Rue de l'Église", "Calle Mayor", "Nowy Świat", "Long Acre", "中山路")
_CITIES: Final = ("Köln", "Lyon", "Málaga", "Kraków", "Bristol", "臺北", "İzmir")
_REMARKS: Final = (
    "rings twice",
    'says "leave it at the door"',
    "first line\r\nsecond line",
    "tab\there, comma, semicolon; done",
    "café & crème <3",
    "🚲 deliveries only",
    "back\\slash",
    "NULL",
    "",
)


def person_name(rng: random.Random) -> str:
    return rng.choice(_WHOLE) if rng.random() < 0.2 else f"{rng.choice(_GIVEN)} {rng.choice(_FAMILY)}"


def address(rng: random.Random) -> str:
    """JSON as TiDB prints it: keys in order, a space after each comma and colon."""
    parts: dict[str, object] = {
        "street": f"{rng.choice(_STREETS)} {rng.randint(1, 120)}",
        "city": rng.choice(_CITIES),
        "zip": f"{rng.randint(0, 99999):05d}",
    }
    if rng.random() < 0.3:
        parts["geo"] = [rng.randint(-90, 90), rng.randint(-180, 180)]
    return json_text(parts)


def remark(rng: random.Random) -> str | None:
    return None if rng.random() < 0.5 else rng.choice(_REMARKS)


def birthday(rng: random.Random) -> str | None:
    if rng.random() < 0.2:
        return None
    return (datetime.date(1940, 1, 1) + datetime.timedelta(days=rng.randrange(25_000))).isoformat()


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
