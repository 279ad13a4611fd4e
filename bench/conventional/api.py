import uuid
from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, NotFound
from rest_framework.response import Response
from rest_framework.views import APIView

from bench.conventional.models import Job, JobEvent, Lock, LockEvent


class Held(APIException):
    status_code = 409
    default_detail = "held"


class LockSerializer(serializers.ModelSerializer):
    class Meta:
        model = Lock
        fields = ["resource_type", "resource_id", "ttl_seconds", "holder", "lease_id", "fencing_token", "expires_at"]
        read_only_fields = ["lease_id", "fencing_token", "expires_at"]
        # Otherwise the serializer refuses a name that has a row, free or not.
        validators = []


class HeartbeatSerializer(serializers.Serializer):
    fencing_token = serializers.IntegerField(min_value=1)


class Acquire(APIView):
    def post(self, request):
        serializer = LockSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        given = serializer.validated_data
        with transaction.atomic():
            lock, created = Lock.objects.select_for_update().get_or_create(
                resource_type=given["resource_type"],
                resource_id=given["resource_id"],
                defaults={
                    "owner": request.user,
                    "holder": given["holder"],
                    "ttl_seconds": given["ttl_seconds"],
                    "expires_at": timezone.now() + timedelta(seconds=given["ttl_seconds"]),
                    "fencing_token": 1,
                },
            )
            if not created:
                now = timezone.now()
                if lock.expires_at > now and lock.holder != given["holder"]:
                    raise Held
                lock.lease_id = uuid.uuid4()
                lock.fencing_token += 1
                lock.owner, lock.holder, lock.ttl_seconds = request.user, given["holder"], given["ttl_seconds"]
                lock.expires_at = now + timedelta(seconds=given["ttl_seconds"])
                lock.save()
            LockEvent.objects.create(lock=lock, type="acquired", actor=request.user, data={"holder": lock.holder})
        return Response(LockSerializer(lock).data, status=status.HTTP_201_CREATED)


class Heartbeat(APIView):
    def post(self, request, lease_id):
        serializer = HeartbeatSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        with transaction.atomic():
            lock = Lock.objects.select_for_update().filter(lease_id=lease_id, owner=request.user).first()
            if lock is None or lock.fencing_token != serializer.validated_data["fencing_token"]:
                raise NotFound
            now = timezone.now()
            if lock.expires_at <= now:
                raise Held("lost")
            lock.expires_at = now + timedelta(seconds=lock.ttl_seconds)
            lock.save()
        return Response(LockSerializer(lock).data)


class ClaimSerializer(serializers.Serializer):
    queue = serializers.CharField(max_length=200)
    ttl_seconds = serializers.IntegerField(min_value=10, max_value=86400, default=300)


class JobSerializer(serializers.ModelSerializer):
    class Meta:
        model = Job
        fields = ["id", "queue", "priority", "payload", "attempts", "expires_at"]


class Claim(APIView):
    def post(self, request):
        serializer = ClaimSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        given = serializer.validated_data
        with transaction.atomic():
            ready = Job.objects.select_for_update(skip_locked=True).filter(queue=given["queue"], state="ready")
            job = ready.order_by("-priority", "id").first()
            if job is None:
                return Response(status=status.HTTP_204_NO_CONTENT)
            job.state, job.owner, job.attempts = "leased", request.user, job.attempts + 1
            job.expires_at = timezone.now() + timedelta(seconds=given["ttl_seconds"])
            job.save()
            JobEvent.objects.create(job=job, type="claimed", actor=request.user)
        return Response(JobSerializer(job).data)
