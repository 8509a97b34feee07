#!/bin/sh
set -e
wc -w < /app/words.txt | tr -d " " > /app/answer.txt
