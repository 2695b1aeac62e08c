#!/bin/bash
set -e
test "$COLOUR" = blue
tr a-z A-Z < /srv/greeting > /srv/answer
