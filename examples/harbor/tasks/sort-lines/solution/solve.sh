#!/bin/sh
set -e
sort -u /app/names.txt > /app/sorted.txt
