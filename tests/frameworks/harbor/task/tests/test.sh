#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /srv/answer)" = HELLO ] && [ -s /srv/made ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
