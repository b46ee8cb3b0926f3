#!/bin/bash
# Run it on the first host, which must reach the others by ssh without a password. All hosts need this folder and the
# trainer.
{setup}exec {supervisor}
