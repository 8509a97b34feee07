#!/bin/sh
echo "Hello, $name"
