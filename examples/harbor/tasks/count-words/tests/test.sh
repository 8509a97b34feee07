#!/bin/sh
# Writes 1 if the task was solved, and 0 if not.
if [ "$(tr -d "[:space:]" < /app/answer.txt)" = 12 ]; then reward=1; else reward=0; fi
echo "$reward" > /logs/verifier/reward.txt
