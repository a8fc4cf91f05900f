"""Jobs for clusters elsewhere: what they need is packed and uploaded, they are submitted, followed, brought home."""
