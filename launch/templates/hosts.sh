#!/bin/bash
# Run it on the first host, which reaches the others by ssh without a password. All have this folder and the trainer.
exec {supervisor}
