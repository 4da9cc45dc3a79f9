"""One model divided over several devices of a machine: each holds a part of every parameter (FSDP2), in a process of its
own."""
