"""The scheduler in real time: loop, ranks, session, journal."""
