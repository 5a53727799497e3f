"""Imported first by every adapter: says in one sentence that torch is missing."""

from __future__ import annotations

from headway.errors import import_optional

import_optional("torch", user="headway.integrations", extra="torch")
