#!/usr/bin/python3
"""An account-change ledger that survives at-least-once delivery: effect and record in ONE transaction.

Messages ("add 100 to account 7") come from a local list that delivers each again and again until it is acknowledged, in any order,
sometimes twice at once. Workers crash at random points: before, between and after the statements, in the middle of the commit, after it.
At the end every message must be in the ledger once and the balance must be their sum.

    apt-get install python3-psycopg2
    ./ledger.py --dsn "host=... dbname=dedup user=billing_app password=..." --schema billing --topic payments

--two-transactions does what one must not do: it asks in one transaction and writes in another. Messages are lost then, and that is shown.
The exit code is 0 if the books are right.
"""

import argparse
import os
import random
import signal
import socket
import sys
import time
import uuid

try:
    import psycopg2
except ImportError:
    sys.exit("psycopg2 is missing: apt-get install python3-psycopg2, and run this with /usr/bin/python3")

AMOUNT = 100
CRASHED, BUSY = 9, 2
# Try again later: the key is held by another open transaction; or snapshots and locks of concurrent transactions collided.
RETRYABLE = {"55P03", "40001", "40P01"}


def handle(connection, message, topic, step):
    """The consumer. This is all there is to it: ask and write in one transaction, then commit; only then acknowledge."""
    key, account = message
    with connection.cursor() as cursor:
        step("begin")
        cursor.execute("SELECT verdict FROM dedup.check(%s, %s)", (topic, key))
        first = cursor.fetchone()[0] == "first"
        step("asked")
        if first:
            cursor.execute("INSERT INTO ledger_entries (message, account, amount) VALUES (%s, %s, %s)", (key, account, AMOUNT))
            step("entered")
            cursor.execute("UPDATE ledger_accounts SET balance = balance + %s WHERE account = %s", (AMOUNT, account))
            step("added")
    connection.commit()
    step("committed")


def handle_wrongly(connection, message, topic, step):
    """What --two-transactions shows: a crash between the two commits loses the message, since it is 'duplicate' from then on."""
    key, account = message
    with connection.cursor() as cursor:
        step("begin")
        cursor.execute("SELECT verdict FROM dedup.check(%s, %s)", (topic, key))
        first = cursor.fetchone()[0] == "first"
        connection.commit()
        step("asked")
        if first:
            cursor.execute("INSERT INTO ledger_entries (message, account, amount) VALUES (%s, %s, %s)", (key, account, AMOUNT))
            step("entered")
            cursor.execute("UPDATE ledger_accounts SET balance = balance + %s WHERE account = %s", (AMOUNT, account))
            step("added")
    connection.commit()
    step("committed")


def connect(args):
    return psycopg2.connect(args.dsn, options=f"-csearch_path={args.schema}", application_name="ledger")


def work(args, message, crash):
    """One delivery in a process of its own. Exit code 0 is the acknowledgement."""
    connection = connect(args)
    kind, where = crash

    def step(name):
        if name != where:
            return
        if kind == "exit":
            os._exit(CRASHED)
        # The network goes away; the next statement, or the commit, fails.
        socket.socket(fileno=os.dup(connection.fileno())).shutdown(socket.SHUT_RDWR)

    if kind == "kill":
        # At any moment, also inside the commit: the default action of the alarm ends the process.
        signal.setitimer(signal.ITIMER_REAL, where)
    try:
        (handle_wrongly if args.two_transactions else handle)(connection, message, args.topic, step)
    except psycopg2.Error as error:
        os._exit(BUSY if error.pgcode in RETRYABLE else CRASHED if crash[0] else 1)
    os._exit(0)


def random_crash(dice):
    kind = dice.choice(["exit", "cut", "kill"])
    if kind == "kill":
        return kind, dice.uniform(0.0001, 0.006)
    return kind, dice.choice(["begin", "asked", "entered", "added", "committed"])


def run(args):
    dice = random.Random(args.seed)
    with connect(args) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS ledger_entries, ledger_accounts")
        # No unique key on the message: nothing but dedup keeps an entry from being written twice.
        cursor.execute("CREATE TABLE ledger_entries (message text NOT NULL, account int NOT NULL, amount int NOT NULL)")
        cursor.execute("CREATE TABLE ledger_accounts (account int PRIMARY KEY, balance int NOT NULL)")
        cursor.execute("INSERT INTO ledger_accounts SELECT n, 0 FROM generate_series(0, 4) n")
    connection.close()

    name = uuid.uuid4().hex[:8]
    messages = [(f"{args.prefix}:ledger-{name}/{n}", n % 5) for n in range(args.messages)]
    unacknowledged = set(messages)
    crashes = deliveries = 0
    workers = {}
    while unacknowledged or crashes < args.crashes or workers:
        while len(workers) < args.workers and (unacknowledged or crashes < args.crashes):
            # Mostly what is not acknowledged; a broker may also deliver what was.
            pool = sorted(unacknowledged) if unacknowledged and dice.random() < 0.9 else messages
            message = dice.choice(pool)
            crash = random_crash(dice) if crashes < args.crashes and dice.random() < 0.7 else (None, None)
            deliveries += 1
            pid = os.fork()
            if pid == 0:
                work(args, message, crash)
            workers[pid] = message
        pid, status = os.wait()
        message = workers.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            unacknowledged.discard(message)
        elif code == BUSY:
            time.sleep(0.01)
        elif code == CRASHED or code == -signal.SIGALRM:
            crashes += 1
        else:
            sys.exit(f"a worker failed with {code}, and not by an injected crash")

    with connect(args) as connection, connection.cursor() as cursor:
        # Sessions of killed workers may still be committing what they were told to.
        cursor.execute("LOCK TABLE ledger_entries, ledger_accounts IN SHARE MODE")
        cursor.execute("SELECT message, count(*) FROM ledger_entries GROUP BY message")
        entries = dict(cursor.fetchall())
        cursor.execute("SELECT sum(balance) FROM ledger_accounts")
        balance = cursor.fetchone()[0]
        cursor.execute("DROP TABLE ledger_entries, ledger_accounts")
    lost = sum(1 for key, _ in messages if key not in entries)
    doubled = sum(1 for count in entries.values() if count > 1)
    expected = AMOUNT * len(messages)
    print(f"messages {len(messages)} deliveries {deliveries} crashes {crashes} lost {lost} doubled {doubled} balance {balance} expected {expected}")
    right = lost == 0 and doubled == 0 and balance == expected
    print("every message took effect exactly once" if right else "THE BOOKS ARE WRONG")
    return 0 if right else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dsn", required=True, help="a login with the role dedup_app, in the home's database")
    parser.add_argument("--schema", required=True, help="schema where that login may create tables")
    parser.add_argument("--topic", required=True, help="a topic that exists")
    parser.add_argument("--prefix", default="eu", help="one of the home's key prefixes (eu)")
    parser.add_argument("--messages", type=int, default=60)
    parser.add_argument("--crashes", type=int, default=200, help="crashes to inject, at least")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--two-transactions", action="store_true", help="do it wrongly, to see what happens")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
