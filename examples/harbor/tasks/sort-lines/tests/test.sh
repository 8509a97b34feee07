#!/bin/sh
# Writes 1 if the task was solved, and 0 if not.
if printf "Ada\nBarbara\nGrace\nMary\n" | cmp -s - /app/sorted.txt; then reward=1; else reward=0; fi
echo "{\"reward\": $reward, \"exists\": $(test -e /app/sorted.txt && echo 1 || echo 0)}" > /logs/verifier/reward.json
