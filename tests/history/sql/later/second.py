"""A migration as a later zeusrun may have one: it fills a new column from the records."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.add_column("trials", sa.Column("epochs", sa.Integer))
    trials = sa.table("trials", sa.column("number"), sa.column("record"), sa.column("epochs"))
    for number, record in op.get_bind().execute(sa.select(trials.c.number, trials.c.record)).all():
        epochs = json.loads(record)["epochs"]
        op.execute(sa.update(trials).where(trials.c.number == number).values(epochs=epochs))


def downgrade():
    op.drop_column("trials", "epochs")
