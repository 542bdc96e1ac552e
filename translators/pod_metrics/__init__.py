"""The formats in which kubelets serve the resource use of pods."""
