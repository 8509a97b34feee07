#!/bin/sh
# Writes 1 if the task was solved, and 0 if not.
if [ "$(sh /app/greet.sh Grace)" = "Hello, Grace" ]; then reward=1; else reward=0; fi
echo "$reward" > /logs/verifier/reward.txt
